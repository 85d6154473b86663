"""What is changed: the arithmetic that results rest on, each with the tests that have to fail when it is wrong."""

from __future__ import annotations

from typing import NamedTuple


class Target(NamedTuple):
    """A module and its tests.

    Attributes:
      tests: Arguments of pytest, relative to tests/; those that take a few seconds, in one process.
      only: Top-level functions, classes and variables that are changed; empty for all.
    """

    tests: tuple[str, ...]
    only: tuple[str, ...] = ()


_SEVERAL_LABELS = "estimator_app/test_several_labels_training.py"
TARGETS = {
    "tpu_input.dataset_format.records": Target(("tpu_input/test_records.py",)),
    "tpu_input.dataset_format.manifest": Target(("tpu_input/test_manifest.py",)),
    "beam_pipelines.conversion.plan": Target(
        ("beam_pipelines/test_plan.py", "-k", "not a_split_s_share and not 1281167-1024")
    ),
    # What is in shard, index and receipt. The rest waits for processes.
    "beam_pipelines.conversion.shard_writing": Target(
        ("beam_pipelines/test_shard_writing.py",), ("write_shard", "_Files", "_Summed")
    ),
    # Which images the statistics are of, and what is in records and index.
    "beam_pipelines.conversion.units": Target(
        ("beam_pipelines/test_shard_writing.py",), ("WrittenUnit", "UnitWriter", "schema_of", "_index_row")
    ),
    "beam_pipelines.conversion.receipts": Target(
        ("beam_pipelines/test_statistics.py", "beam_pipelines/test_shard_writing.py"), ("Receipt", "_whole_numbers")
    ),
    "beam_pipelines.conversion.checksums": Target(("beam_pipelines/test_shard_writing.py",)),
    # Sums, means and the budget of rejected inputs. Moves and versions are tested by whole conversions.
    "beam_pipelines.conversion.commit": Target(
        ("beam_pipelines/test_statistics.py",),
        ("_manifest", "check_budget", "_examples", "_split", "_measure_stored", "_stored_records", "_extent"),
    ),
    "tpu_input.pipeline.order": Target(
        (
            *("tpu_input/test_order.py", "tpu_input/test_balanced_order.py", "-k"),
            "version or largest or mib or splitmix64 or permuted or often_as or spread or visits or turns "
            "or at_every_step_classes",
        )
    ),
    "tpu_input.pipeline.hosts": Target(("tpu_input/test_hosts.py", "-k", "not 1281167-1024-1024")),
    # The crops' windows. The rest passes images to TensorFlow's decoders.
    "tpu_input.pipeline.images": Target(
        (
            *("tpu_input/test_windows.py", "-k", "not published_distribution"),
            "tpu_input/test_without_tensorflow.py::test_windows_and_flips_of_a_seed_are_tensorflow_s",
            "tpu_input/test_scaled_decode.py::test_a_window_that_the_ratio_divides_does_not_move_at_all",
            "tpu_input/test_resize.py::test_training_draws_the_part_that_the_published_rule_gives_of_the_squashed_image",
            "tpu_input/test_scaled_decode.py::test_training_decodes_what_libjpeg_decodes_at_the_scale_that_fits[200]",
            "tpu_input/test_scaled_decode.py::test_no_window_becomes_smaller_than_the_image_it_is_resized_to",
        ),
        ("random_window", "centre_window", "scaled_window", "_crops", "_part"),
    ),
    "tpu_input.without_tensorflow.random_numbers": Target(
        ("tpu_input/test_without_tensorflow.py", "-k", "philox or seed")
    ),
    "tpu_input.without_tensorflow.windows": Target(
        (
            "tpu_input/test_without_tensorflow.py::test_windows_and_flips_of_a_seed_are_tensorflow_s",
            "tpu_input/test_without_tensorflow.py::test_centre_whole_and_scaled_windows_and_padded_sides_are_tensorflow_s",
            "tpu_input/test_windows.py::test_known_draws_give_the_crop_of_the_published_rule",
            "tpu_input/test_windows.py::test_what_cannot_fit_is_the_largest_centred_part_with_an_allowed_aspect",
            "tpu_input/test_scaled_decode.py::test_training_decodes_what_libjpeg_decodes_at_the_scale_that_fits[200]",
        ),
    ),
    "estimator_app.model.losses": Target(
        ("estimator_app/test_losses.py", f"{_SEVERAL_LABELS}::test_the_loss_is_the_mean_over_the_classes")
    ),
    "estimator_app.model.metrics": Target(("estimator_app/test_metrics.py",)),
    "estimator_app.model.tensorflow_metrics": Target(
        (
            "estimator_app/test_metrics.py",
            f"{_SEVERAL_LABELS}::test_metrics_are_those_of_scikit_learn_over_any_batches",
            f"{_SEVERAL_LABELS}::test_average_precision_of_one_example_and_of_none",
        )
    ),
    "estimator_app.model.optimizers": Target(("estimator_app/test_optimizers.py",)),
    "estimator_app.model.schedule": Target(("estimator_app/test_schedule.py", "-k", "not begins_with_the_numbers")),
}

"""A package whose commands do what none may, for the test that the fuzzer notices."""

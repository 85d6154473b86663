"""Records of other programs as rows: TFRecords, Parquet, WebDataset; record_files.py says which files are read how."""

"""What `Parquet` is made of: footers, the row groups that are kept, their bytes, and values of columns."""

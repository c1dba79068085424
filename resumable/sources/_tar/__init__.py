"""What `Tars` is made of: patterns of shards, a scan of their headers, the index that is kept, and decoders."""

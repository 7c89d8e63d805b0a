"""File formats of exports: CSV, JSON Lines, Parquet and XLSX."""

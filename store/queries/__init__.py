"""Queries of the reader, one topic a module: rows of points in, frames and histograms out."""

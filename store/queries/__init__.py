"""Queries of the reader, one module for each topic; they turn rows of points into frames and histograms."""

"""What the reader is asked, one question a module: rows of points in, frames and histograms out."""

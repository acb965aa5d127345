"""Pure calculations over histograms and counts: values in, values out."""

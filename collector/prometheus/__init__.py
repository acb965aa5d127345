"""Out to Prometheus: the latency of live series as histograms, classic and native, and the formats they are told in."""

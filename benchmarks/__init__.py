"""Speed and memory against stated baselines: same data, same run, interleaved repeats."""

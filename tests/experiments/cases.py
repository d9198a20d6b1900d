"""Results that cost nothing."""

RESULT = {
    **{f"{side}_{name}": 10.0 for side in ("i2t", "t2i") for name in ("r1", "r5", "r10")},
    "i2t_median_rank": 5.0,
    "t2i_median_rank": 5.0,
    "rsum": 60.0,
}

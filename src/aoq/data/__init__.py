"""Pictures and captions become a data set: ids, region features, captions, who belongs to whom."""

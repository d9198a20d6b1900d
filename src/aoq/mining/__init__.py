"""Mining: the hardest wrong partners of every image and text, from the whole training set."""

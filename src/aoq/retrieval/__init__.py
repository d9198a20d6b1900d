"""Search with a trained model: an index of images and texts, and the matcher that answers."""

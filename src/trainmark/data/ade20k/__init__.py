"""ADE20K and sets like it: images, and beside each a mask with a class for every pixel."""

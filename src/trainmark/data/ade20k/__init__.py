"""ADE20K and sets like it: pictures, and beside each a mask with a class for every pixel."""

"""What the programs of bench/ share. They are run as files (``python bench/compare.py``), so this is found beside them."""

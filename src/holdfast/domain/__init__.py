"""The nouns of Holdfast, one file each. Standard library only: every other room may know them."""

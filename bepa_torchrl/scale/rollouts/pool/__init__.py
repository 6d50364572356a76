"""The workers of a Ray cluster: one actor per node with many desktops, replaced when it fails."""

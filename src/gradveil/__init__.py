"""GradVeil."""

"""Components, design tokens, number formats and exports that all pages share."""

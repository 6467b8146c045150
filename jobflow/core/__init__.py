"""The base of all other packages: errors, element types, layouts, scopes, and checks of files."""

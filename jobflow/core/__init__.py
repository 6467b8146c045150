"""The base of all other folders: errors, element types, layouts, scopes, and checks of files."""

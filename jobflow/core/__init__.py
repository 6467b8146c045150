"""What every floor stands on: errors, element types, layouts, the scope of a program, and files from outside."""

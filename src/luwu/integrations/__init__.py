"""What other libraries' trainers need beside the public API; each module needs the library it is named after."""

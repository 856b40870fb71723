"""Parts for other libraries' trainers beside the public API; each module needs the library it is named after."""

"""What tests of the pages, notebooks and typed examples read them with."""

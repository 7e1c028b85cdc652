"""One file a section of the configuration: a frozen dataclass, its units, its defaults and its checks."""

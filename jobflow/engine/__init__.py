"""From a declared job to a call of it: the session, what is compiled, how ranks are commanded, and how results come back."""

"""Jobs from declaration to call: the session, compiled jobs, options, and the delivery of results."""

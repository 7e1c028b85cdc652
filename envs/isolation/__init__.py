"""Work on untrusted text in processes that can be killed: a pool with hard deadlines and the server its workers run."""

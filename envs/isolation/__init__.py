"""Work in processes that can be killed: a pool with hard deadlines, the server its workers run, what children print."""

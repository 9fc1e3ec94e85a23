"""Sessions: cells that share variables, run one after another in one process. The same for every backend.

`resident` is what a backend provides, `table` what it uses; `cells` runs in the jail. Imports nothing: the
programs' interpreter loads this file too.
"""

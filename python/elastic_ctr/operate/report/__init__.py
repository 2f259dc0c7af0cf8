"""The page of a run: one HTML file that needs no server, no network and no script, from the answers of master and cube-transfer.

Every function here is pure: equal answers give equal text.
"""

"""Python's own start-up module: records in every process of a server that has this on its path."""

import target_forwards

target_forwards.register()

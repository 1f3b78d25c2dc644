"""The task families that the YAML files name: matching and ranking.

Importing this package activates the plugin for the process: the harness resolves a YAML's functions before it looks
a model up, so a task named by its file's path finds our models too.
"""

from gecs_tasks import plugin

plugin.activate()

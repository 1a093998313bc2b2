"""The ready apps as Flower's pyproject names them, configured by the run config alone.

[tool.flwr.app.components]
serverapp = "gradveil.flower.ready:server"
clientapp = "gradveil.flower.ready:client"
"""

from gradveil.flower._apps import client_app, server_app

client = client_app()
server = server_app()

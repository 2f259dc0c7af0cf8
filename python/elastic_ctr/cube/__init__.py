"""The sharded lookup store: format, builder, table, wire, server, client, agent, transfer."""

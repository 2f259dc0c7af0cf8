"""The agent of a cube pod, a task of cube-server: it fetches the parts that are assigned to the pod and has them loaded."""

"""python -m elastic_ctr"""

from elastic_ctr.operate.cli.main import main

main()

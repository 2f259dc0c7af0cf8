"""python -m elastic_ctr"""

from elastic_ctr.cli.main import main

main()

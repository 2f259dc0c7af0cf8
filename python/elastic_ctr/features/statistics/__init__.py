"""Statistics of columns: collected by trainers, merged by the master, compared with those of later passes."""

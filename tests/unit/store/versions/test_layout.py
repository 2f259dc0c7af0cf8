from elastic_ctr.store.versions import layout


def test_everything_stands_where_the_design_says() -> None:
    assert layout.cube_file(7, "delta", 17, 60) == "output/ctr_cube/7/delta/feature-00017-of-00060.seq"
    assert layout.BASE_DONEFILE == "output/ctr_cube/donefile/base.txt"
    assert layout.PATCH_DONEFILE == "output/ctr_cube/donefile/patch.txt"
    assert layout.sample_file(7) == "output/ctr_model/7/sample.jsonl"
    assert layout.version_manifest(7) == "output/versions/7.json"
    assert layout.dictionary_part(7, 17) == "output/ctr_dict/7/part-00017.dict"
    assert layout.dictionary_manifest(7) == "output/ctr_dict/7/manifest.json"
    assert layout.checkpoint_manifest("20200401-00-3") == "checkpoints/20200401-00-3/manifest.json"

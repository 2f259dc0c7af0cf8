"""Transfer's view of the builder, which is played: it may forget, refuse, fail, or be away."""

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from credentials import tokens
from elastic_ctr.cube.release import BuildProgress
from elastic_ctr.cube.transfer.builder_client import Builder
from elastic_ctr.runtime.http import application, serving


class Played:
    """Answers each question with the next of what it was given; the last one stays."""

    def __init__(self, *answers: BuildProgress | tuple[int, str]) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def build(self, request: Request) -> Response:
        self.asked.append(request.method)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BuildProgress):
            return JSONResponse(answer.model_dump(mode="json", by_alias=True))
        return JSONResponse({"error": answer[1]}, status_code=answer[0])


async def built(played: Played) -> tuple[BuildProgress, Builder]:
    app = application([Route("/build", played.build, methods=["GET", "POST"])])
    async with serving(app, "127.0.0.1", 0) as door:
        builder = Builder(f"http://127.0.0.1:{door.port}", tokens("secret"))
        try:
            return await builder.build(7), builder
        finally:
            await builder.close()


def at(stage: str, version: int | None = 7, **more: object) -> BuildProgress:
    return BuildProgress.model_validate({"version": version, "stage": stage, **more})


async def test_an_order_is_asked_after_until_it_is_done() -> None:
    played = Played(at("planning"), at("building"), at("done", seconds=1.5))

    progress, builder = await built(played)

    assert progress.stage == "done"
    assert played.asked == ["POST", "GET", "GET"]
    assert builder.seconds[7].seconds == 1.5
    assert builder.may_try(7)


async def test_a_builder_that_was_restarted_is_given_the_order_again() -> None:
    played = Played(at("building"), at("idle", None), at("done"))

    progress, _ = await built(played)

    assert progress.stage == "done"
    assert played.asked == ["POST", "GET", "POST"]


async def test_a_failed_build_is_not_ordered_again_at_once() -> None:
    progress, builder = await built(Played(at("failed", error="no space", final=False)))

    assert (progress.error, builder.error) == ("no space", None)
    assert not builder.may_try(7)
    assert builder.may_try(8)


async def test_a_builder_that_is_busy_is_no_trouble() -> None:
    progress, builder = await built(Played((409, "version 6 is being built; order 7 when it is done")))

    assert (progress.stage, progress.final, builder.error) == ("failed", False, None)


@pytest.mark.parametrize("answer", [(401, "no"), (500, "broken")])
async def test_a_builder_that_does_not_do_as_told_is_named(answer: tuple[int, str]) -> None:
    progress, builder = await built(Played(answer))

    assert not progress.final
    assert builder.error is not None
    assert f"answered {answer[0]}" in builder.error

"""The OpenAPI document is true: schemathesis calls every route by it; the page that shows it is served whole."""

from tests.support.front import running_front


async def test_the_documents_page_and_its_files_are_served() -> None:
    async with running_front() as front:
        page = front.client.request("GET", "/docs")
        assert await page.status() == 200
        html = (await page.body()).decode()
        for name, kind in (("swagger-ui.css", "text/css"), ("swagger-ui-bundle.js", "text/javascript")):
            assert f"docs/{name}" in html
            asset = front.client.request("GET", f"/docs/{name}")
            assert await asset.status() == 200
            assert (await asset.headers())["content-type"] == kind
            assert len(await asset.body()) > 10_000
        assert await front.client.request("GET", "/docs/../app.py").status() == 404
        assert await front.client.request("GET", "/docs/other.js").status() == 404
        document = await front.client.request("GET", "/openapi.json").json()
    assert set(document["paths"]) == {"/v1/chat/completions", "/v1/models", "/v1/models/{model_id}"}

"""Who gets an answer: only pages of this server, only below the folder, actions with the token."""

import pytest

from save_rl.studio.security import HEADERS, is_loopback, new_token
from save_rl.studio.server import PAGES, make_app
from tests.studio.asgi import request
from tests.studio.folders import contents, lines, make_run

TOKEN = "the-token"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    make_run(outside / "secret", lines(3))
    (outside / "secret" / "figure.png").write_bytes(b"picture")
    root = tmp_path_factory.mktemp("runs")
    make_run(root / "first", lines(3))
    (root / "link").symlink_to(outside / "secret")
    (root / "first" / "escape.png").symlink_to(outside / "secret" / "figure.png")
    (root / "first" / "curve.png").write_bytes(b"curve")
    (root / "first" / "page.svg").write_text("<svg onload='alert(1)'/>")
    (root / "circle").symlink_to(root / "circle")
    return root


@pytest.fixture(scope="module")
def app(folder):
    return make_app(folder, token=TOKEN)


@pytest.fixture(scope="module")
def far_app(folder):
    return make_app(folder, token=TOKEN, host="0.0.0.0", port=9000)


def test_tokens_differ():
    assert len({new_token() for _ in range(100)}) == 100
    assert len(new_token()) >= 32


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost", "::1"])
def test_addresses_of_this_machine_alone(host):
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "192.168.0.3", "example.org", "localhost.evil.org"]
)
def test_addresses_that_others_reach(host):
    assert not is_loopback(host)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:8000", "LOCALHOST:80", "[::1]:80"])
def test_its_own_names_are_answered(app, host):
    assert request(app, "/api/runs", headers={"host": host}).status == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.org", "evil.org:80", "127.0.0.1.evil.org", "localhost@evil.org", "",
        "[", "192.168.0.3", "127.0.0.1:port", None,
    ],
)  # fmt: skip
def test_a_foreign_host_is_refused(app, host):
    """A page of evil.org whose name leads here must not read runs (DNS rebinding)."""
    answer = request(app, "/api/runs", headers={"host": host})
    assert answer.status == 421
    assert "open the address it printed" in answer.json["error"]


@pytest.mark.parametrize("origin", ["http://evil.org", "https://127.0.0.1:80", "null", ""])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_foreign_origin_is_refused_even_with_the_token(app, origin, method):
    headers = {"origin": origin, "x-studio-token": TOKEN}
    answer = request(app, "/api/runs", headers=headers, method=method)
    assert answer.status == 403
    assert answer.json["error"] == "The request comes from another site."


def test_its_own_origin_is_answered(app):
    assert request(app, "/api/runs", headers={"origin": "http://127.0.0.1:80"}).status == 200


@pytest.mark.parametrize("mode", ["cors", "no-cors", "websocket"])
def test_other_sites_can_link_here_but_not_embed(app, mode):
    cross = {"sec-fetch-site": "cross-site"}
    assert request(app, "/", headers={**cross, "sec-fetch-mode": "navigate"}).status == 200
    assert request(app, "/api/runs", headers={**cross, "sec-fetch-mode": mode}).status == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
@pytest.mark.parametrize("token", [None, "", "wrong", TOKEN + "x"])
def test_actions_need_the_token_here_too(app, method, token):
    answer = request(app, "/api/runs", method=method, headers={"x-studio-token": token})
    assert answer.status == 403
    assert "token is missing or wrong" in answer.json["error"]


def test_with_the_token_a_list_still_can_only_be_read(app):
    """405: the guard lets it in, and there is nothing to do."""
    answer = request(app, "/api/runs", method="POST", headers={"x-studio-token": TOKEN})
    assert answer.status == 405


@pytest.mark.parametrize("page", PAGES)
def test_pages_have_the_token_and_say_what_to_refuse(app, page):
    answer = request(app, page)
    assert answer.status == 200
    assert f'content="{TOKEN}"' in answer.body.decode()
    assert {name: answer.headers[name.lower()] for name in HEADERS} == dict(HEADERS)


def test_refusals_have_the_headers_too(app):
    answer = request(app, "/", headers={"host": "evil.org"})
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")


def test_no_script_or_style_from_elsewhere_is_allowed():
    rules = dict(r.split(" ", 1) for r in HEADERS["Content-Security-Policy"].split("; "))
    assert {rules[kind] for kind in ("script-src", "style-src", "connect-src", "worker-src")} == {
        "'self'"
    }


@pytest.mark.parametrize(
    "name",
    [
        "..", "../outside0/secret", "/etc", "first/../../outside0/secret", "link", "circle",
        "absent", "first/metrics.csv", "first/nothing", "a\0b", "x" * 5000, "",
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/api/run", "/api/curves"])
def test_no_name_leads_out_of_the_folder(app, path, name):
    answer = request(app, path, {"run": name})
    assert answer.status == 404
    assert set(answer.json) == {"error"}
    assert "Traceback" not in answer.json["error"]


def test_no_file_of_a_run_leads_out_of_the_folder(tmp_path):
    """Somebody else's run may hold links to files of yours."""
    secret = tmp_path / "outside" / "secret"
    secret.parent.mkdir()
    secret.write_text("secret,seed,episodes\n1,2,3\n")
    run = make_run(tmp_path / "root" / "run", lines(3))
    app = make_app(tmp_path / "root", token=TOKEN)
    for name in ("job.log", "failure.txt", "evaluation.csv", "metrics.csv", "config.json"):
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(secret)
        for path in ("/api/run", "/api/curves", "/api/runs", "/api/episodes"):
            answer = request(app, path, {"run": "run"})
            assert answer.status == 200
            assert b"secret" not in answer.body, (name, path)
    assert request(app, "/api/runs").json["runs"][0]["problem"] == (
        "config.json can't be read (it is a link, and none is followed)."
    )


def test_links_are_not_followed_when_looking_for_runs(app):
    assert [run["name"] for run in request(app, "/api/runs").json["runs"]] == ["first"]


@pytest.mark.parametrize(
    "file", ["escape.png", "config.json", "page.svg", "../first/config.json", "absent.png", ".", ""]
)
def test_only_pictures_of_the_folder_are_handed_out(app, file):
    assert request(app, "/api/picture", {"in": "first", "file": file}).status == 404


def test_pictures_are_handed_out(app):
    answer = request(app, "/api/picture", {"in": "first", "file": "curve.png"})
    assert (answer.status, answer.body) == (200, b"curve")
    assert answer.headers["content-type"] == "image/png"


@pytest.mark.parametrize(
    "path", ["/static/../server.py", "/static/%2e%2e/server.py", "/absent", "/static/"]
)
def test_other_paths_hold_nothing(app, path):
    assert request(app, path).status == 404


def test_a_query_that_is_no_text_is_answered(app):
    assert request(app, "/api/run", raw_query=b"run=%ff%fe&=&&run").status == 404


FAR = {"host": "192.168.0.3:9000"}


class TestOtherMachines:
    """A server on a host that others reach wants the token for everything."""

    @pytest.mark.parametrize("path", ["/", "/api/runs", "/static/app.js", "/api/stream"])
    @pytest.mark.parametrize("query", [{}, {"token": ""}, {"token": "wrong"}])
    def test_nothing_without_the_token(self, far_app, path, query):
        answer = request(far_app, path, query, headers=FAR)
        assert answer.status == 403
        assert "open the address that save-rl studio printed" in answer.json["error"]

    def test_the_token_in_the_url_becomes_a_cookie(self, far_app):
        answer = request(far_app, "/run", {"run": "first", "token": TOKEN}, headers=FAR)
        assert answer.status == 303
        assert answer.headers["location"] == "/run?run=first"
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        name = cookie.split(";")[0]
        again = request(far_app, "/api/runs", headers={**FAR, "cookie": name})
        assert again.status == 200
        other = request(far_app, "/api/runs", headers={**FAR, "cookie": f"{name}x"})
        assert other.status == 403

    def test_the_cookie_is_not_enough_for_actions(self, far_app):
        answer = request(far_app, "/", {"token": TOKEN}, headers=FAR)
        cookie = answer.headers["set-cookie"].split(";")[0]
        headers = {**FAR, "cookie": cookie}
        assert request(far_app, "/api/runs", headers=headers, method="POST").status == 403

    def test_a_name_that_is_not_its_own_is_refused(self, far_app):
        headers = {"host": "evil.org:9000", "x-studio-token": TOKEN}
        assert request(far_app, "/api/runs", headers=headers).status == 421

    def test_a_damaged_cookie_is_no_error(self, far_app):
        headers = {**FAR, "cookie": "\x7f=;;; [=]"}
        assert request(far_app, "/api/runs", headers=headers).status == 403


def test_looking_changes_no_file(app, folder):
    before = contents(folder)
    for path in ("/api/runs", "/api/experiments", "/"):
        assert request(app, path).status == 200
    for path in ("/api/run", "/api/curves"):
        assert request(app, path, {"run": "first"}).status == 200
    assert contents(folder) == before

import pytest

from tests.support.native_server import Caller, NativeServer


@pytest.mark.rule("NAT-1", "NAT-6")
async def test_a_request_is_queued_popped_replied_and_read(native: NativeServer, owner: Caller, client: Caller) -> None:
    await owner.come_online()

    submitted = await client.submit(params={"max_length": 64})
    assert submitted.status == 202
    request_id = submitted.body["id"]
    waiting = await client.status(request_id)
    assert (waiting["done"], waiting["waiting"], waiting["processing"]) == (False, 1, 0)

    job = await owner.pop_job()
    assert job["model"] == "test/model-a"
    assert job["chat"] is True
    running = await client.status(request_id)
    assert (running["done"], running["waiting"], running["processing"]) == (False, 0, 1)

    reply = await owner.reply(job, "Hello yourself.")
    assert reply.status == 200

    done = await client.status(request_id)
    assert (done["done"], done["faulted"], done["finished"]) == (True, False, 1)
    generation = done["generations"][0]
    assert generation["id"] == job["id"]
    assert generation["message"] == {"role": "assistant", "content": "Hello yourself."}
    assert generation["worker_id"] == str(await native.worker_id())
    assert generation["kudos"] == reply.body["reward"]

"""The corridor keeps to the contract and can be walked."""

import corridor
import gymnasium

from winnowrl.envs.checking import check_environment


def test_the_environment_keeps_to_the_contract() -> None:
    assert [result for result in check_environment(corridor.ENV_ID) if result.status == "failed"] == []


def test_walking_to_the_door_and_opening_it_is_rewarded() -> None:
    env = gymnasium.make(corridor.ENV_ID).unwrapped
    for task in env.task_set("train")[:10]:
        env.reset(seed=3, options={"task": task})
        way = env.doors.index(task.answer) - env.place
        for _ in range(abs(way)):
            _, reward, terminated, _, _ = env.step("right" if way > 0 else "left")
            assert (reward, terminated) == (0.0, False)
        assert env.step("open")[1:3] == (1.0, True)

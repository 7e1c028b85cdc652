from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import hypothesis
import pytest
import yaml
from hypothesis import strategies as st
from omegaconf import OmegaConf

from winnowrl.configs.load import ConfigError, built_in_configs, config_to_yaml, load_config
from winnowrl.configs.yaml_text import read_yaml, write_yaml
from winnowrl.training.run_folder import RunFolder


def test_defaults_load_and_a_written_configuration_reads_back_equal() -> None:
    for given in ({}, {"gate": {"type": "prefix_edit_distance", "turn": 3}}, {"selector": {"type": "cbs_star"}}):
        config = load_config(given)
        assert load_config(yaml.safe_load(config_to_yaml(config))) == config


@pytest.mark.parametrize("name", built_in_configs())
def test_every_shipped_configuration_loads(name: str) -> None:
    load_config(name)


def test_overrides_win_and_are_read_as_yaml() -> None:
    config = load_config(
        {"learner": {"learning_rate": 1.0}},
        [
            "learner.learning_rate=1e-5",
            "environment.kwargs={a: [1, 2]}",
            "run.trackers=[]",
            "checkpoint.best_metric=null",
        ],
    )
    assert config.learner.learning_rate == 1e-5
    assert config.environment.kwargs == {"a": [1, 2]}
    assert config.run.trackers == []
    assert config.checkpoint.best_metric is None


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["run.nmae=a"], "unknown key 'run.nmae'; did you mean 'run.name'"),
        (["num_steps=5"], "did you mean 'run.num_steps'"),
        (["lerner.learning_rate=1"], "did you mean 'learner'"),
        (["zzz=1"], "allowed here: run, model"),
        (["run=3"], "it is a section"),
        (["run.num_steps=many"], "run.num_steps: Value 'many'.*allowed: int"),
        (["run.num_steps=2.5"], "could not be converted to Integer"),
        (["learner.learning_rate=fast"], "allowed: float"),
        (["run.num_steps"], "has no '='"),
        (["run.num_steps=["], "the value is not YAML"),
        (["gate.turn=3"], "gate.type is 'none', which does not use it.*prefix_edit_distance"),
        (
            ["gate.type=prefix_edit_distance", "gate.respend=true", "allocator.type=vip"],
            "gate.respend is true with allocator.type vip",
        ),
        (
            ["gate.type=prefix_edit_distance", "gate.termination_fraction=0.95", "collector.rollouts_per_task=8"],
            "gate.termination_fraction is 0.95 with groups of 8.*set it to 0.875 or less",
        ),
        (
            ["gate.type=prefix_edit_distance", "gate.termination_fraction=0.8", "allocator.type=vigor"],
            "gate.termination_fraction is 0.8 with groups of 2.*0.5 or less",
        ),
        (["selector.replay.ratio=1"], r"selector.replay.type is 'none'"),
        (["selector.type=cbss"], "did you mean 'cbs'"),
        (["allocator.type=vigour"], "did you mean 'vigor'"),
        (["collector.rollouts_per_task=1"], "at least 2 rollouts"),
        (["sampling.temperature=0"], "sampling.temperature"),
        (["sampling.top_p=0.9"], "sampling.top_p"),
        (["conversation.rollout_tokens=8"], "below conversation.turn_tokens"),
        (["engine.type=openai"], "engine.type"),
        (["environment.eval_split=train"], "environment.eval_split"),
        (["run.name=a/b"], "run.name"),
        (["evaluation.samples_per_task=4"], "greedy samples are all equal"),
        (["run.trackers=[mlflow]"], "run.trackers"),
        (["selector.type=[a]"], r"selector.type is \['a'\]; allowed: all, random"),
        (["run.trackers={}"], "run.trackers is {}; allowed: a list"),
        (["environment.kwargs=[1]"], r"environment.kwargs is \[1\]; allowed: a mapping"),
        (["checkpoint.best_metric=accuracy"], "checkpoint.best_metric is 'accuracy', which no step logs"),
        (["checkpoint.best_metric=rewards/mean"], "which no step logs"),
        (["checkpoint.best_metric=eval/accuracy"], "allowed: eval/mean, eval/pass@1$"),
        (["checkpoint.best_metric=eval/pass@8"], "samples_per_task = 1 do not give; allowed: eval/mean, eval/pass@1$"),
        (
            ["checkpoint.best_metric=eval/pass@3", "evaluation.samples_per_task=5", "evaluation.temperature=1"],
            "allowed: eval/mean, eval/pass@1, eval/pass@2, eval/pass@4$",
        ),
        (["checkpoint.best_metric=eval/mean", "evaluation.after=false"], "no trained step is evaluated"),
        (
            ["checkpoint.best_metric=eval/mean", "evaluation.after=false", "evaluation.every_steps=21"],
            r"every_steps to 1 to 20 \(run.num_steps\)",
        ),
        (["checkpoint.best_metric=reward"], "which no step logs"),
        (
            ["objective.overlong_penalty=1", "objective.overlong_cache=4097"],
            r"overlong_cache is 4097, above conversation.rollout_tokens \(4096\)",
        ),
        (["run.name=???"], r"run.name is \?\?\?, which marks a value still to be given"),
        (["run.seed=9223372036854775808"], r"run.seed is 9223372036854775808; allowed: 0 to 2\*\*63 - 1"),
        (["run.seed=-1"], r"run.seed is -1; allowed"),
        (["learner.learning_rate=.inf"], "learner.learning_rate is inf; allowed: a finite number"),
        (["objective.dual_clip=.nan"], "objective.dual_clip is nan; allowed: a finite number"),
    ],
)
def test_a_mistake_is_one_sentence_that_says_how_to_mend_it(overrides: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as raised:
        load_config({}, overrides)
    assert len(str(raised.value).splitlines()) == 1


# What sets a field, what decides that nothing reads it, and what makes something read it.
UNUSED = [
    (["objective.kl_type=k2"], "kl_coef is 0.0", ["objective.kl_coef=0.1"]),
    (["objective.kl_ratio_weighted=true"], "kl_coef is 0.0", ["objective.kl_coef=0.1"]),
    (["objective.regularize_zero_advantage=true"], "kl_coef is 0.0", ["objective.entropy_coef=0.1"]),
    (
        ["objective.correction_cap_high=5"],
        "correction is none",
        ["objective.correction=sequence_tis"],
        ["objective.correction=none"],
    ),
    (
        ["objective.correction_cap_low=0.1"],
        "correction is none",
        ["objective.correction=token_mis"],
        ["objective.correction=none"],
    ),
    (
        ["objective.advantage_eps=0.1"],
        "advantage_scale is none",
        ["objective.advantage_scale=batch"],
        ["objective.loss_type=dr_grpo"],
    ),
    (["objective.advantage_std=sample"], "advantage_scale is none", [], ["objective.advantage_scale=none"]),
    (["objective.overlong_cache=9"], "overlong_penalty is 0.0", ["objective.overlong_penalty=1"]),
    (["learner.lora.alpha=4"], "lora.rank is 0", ["learner.lora.rank=2"]),
    (["learner.lora.target_modules=[q_proj]"], "lora.rank is 0", ["learner.lora.rank=2"]),
    (["learner.decays_embeddings=true"], "weight_decay is 0.0", ["learner.weight_decay=0.1"]),
    (["selector.birth_logprobs=sampler"], "selector.type is all", ["selector.type=cbs", "objective.dual_clip=10"]),
    (
        ["selector.replay.priority_eps=0.1", "selector.replay.type=advantage_prioritized", "objective.dual_clip=10"],
        "priority_exponent is 0.0",
        [],
        ["selector.replay.priority_exponent=0"],
    ),
    (["selector.ema_rate=0.5", "selector.type=cbs_star"], "ema_mode is none", [], ["selector.ema_mode=none"]),
    (
        ["selector.entropy_floor=1", "selector.type=cbs_star"],
        "entropy_weight is 0.0",
        [],
        ["selector.entropy_weight=0"],
    ),
    (["checkpoint.best_mode=min"], "best_metric is null", ["checkpoint.best_metric=reward/mean"]),
]


@pytest.mark.parametrize("case", UNUSED, ids=lambda case: case[0][0])
def test_a_field_that_nothing_reads_is_refused_with_what_would_read_it(case: tuple[Any, ...]) -> None:
    given, sentence, mend, *spoil = case
    with pytest.raises(
        ConfigError, match=rf"^{given[0].partition('=')[0]} is .* but .*{sentence}, so nothing reads it"
    ):
        load_config({}, [*given, *(spoil[0] if spoil else [])])
    load_config({}, [*given, *mend])


def test_every_rule_of_an_unused_field_has_a_case_and_a_default_is_never_refused() -> None:
    from winnowrl.configs.unused import RULES

    assert {field for rule in RULES for field in rule.fields} == {case[0][0].partition("=")[0] for case in UNUSED}
    spoilers = [item for case in UNUSED for item in (case[3] if len(case) > 3 else [])]
    for spoiler in spoilers:
        extra = ["selector.type=cbs_star"] if spoiler.startswith(("selector.ema", "selector.entropy")) else []
        if "replay" in spoiler:
            extra = ["selector.replay.type=advantage_prioritized", "objective.dual_clip=10"]
        config = load_config({}, [*extra, spoiler])
        # Written out, every default is given.
        assert load_config(yaml.safe_load(config_to_yaml(config))) == config
    # As run folders of earlier versions have it.
    load_config({"objective": {"overlong_cache": 4096, "overlong_penalty": 0.0}})


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["learner.warmup_steps=20"], "the run has 20 optimizer steps: it would end within its warm-up"),
        (
            ["learner.warmup_steps=80", "learner.num_iterations=2", "learner.num_minibatches=2"],
            "has 80 optimizer steps",
        ),
        (["learner.warmup_steps=79", "learner.num_iterations=2", "learner.num_minibatches=2"], None),
        (
            ["selector.replay.type=advantage_prioritized", "objective.dual_clip=10", "run.num_steps=19"],
            "ever be replayed",
        ),
        (["selector.replay.type=advantage_prioritized", "objective.dual_clip=10"], None),
        (["learner.warmup_steps=5", "run.num_steps=0"], None),
    ],
)
def test_a_warm_up_longer_than_the_run_is_refused(overrides: list[str], sentence: str | None) -> None:
    if sentence is None:
        load_config({}, overrides)
    else:
        with pytest.raises(ConfigError, match=sentence):
            load_config({}, overrides)


@pytest.mark.parametrize(
    "overrides",
    [
        ["checkpoint.best_metric=reward/mean", "evaluation.before=false", "evaluation.after=false"],
        ["checkpoint.best_metric=reward/some_part"],
        ["checkpoint.best_metric=ess"],
        ["checkpoint.best_metric=eval/mean"],
        ["checkpoint.best_metric=eval/mean", "evaluation.after=false", "evaluation.every_steps=5"],
        ["checkpoint.best_metric=eval/pass@4", "evaluation.samples_per_task=5", "evaluation.temperature=1"],
    ],
)
def test_a_best_metric_that_a_run_gives_is_taken(overrides: list[str]) -> None:
    load_config({}, overrides)


def test_another_environment_does_not_get_the_arguments_of_the_first() -> None:
    given = {"environment": {"id": "a/A-v0", "kwargs": {"size": 3}}, "run": {"num_steps": 7}}
    assert load_config(given, ["environment.id=b/B-v0"]).environment.kwargs == {}
    assert load_config(given, ["environment.id=b/B-v0", "environment.kwargs.speed=2"]).environment.kwargs == {
        "speed": 2
    }
    assert load_config(given, ["environment.id=a/A-v0"]).environment.kwargs == {"size": 3}
    assert load_config(given, ["environment.kwargs.speed=2"]).environment.kwargs == {"size": 3, "speed": 2}


def test_files_extend_one_another_and_bad_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("run: {num_steps: 7, seed: 3}\n")
    child = tmp_path / "child.yaml"
    child.write_text("extends: base.yaml\nrun: {seed: 4}\nlearner: {learning_rate: 1e-6}\n")
    config = load_config(child)
    assert (config.run.num_steps, config.run.seed, config.learner.learning_rate) == (7, 4, 1e-6)
    for text, sentence in [
        ("run: [", "not YAML"),
        ("- 1", "holds a list"),
        ("run: {seed: 1}\nrun: {seed: 2}", "stands twice"),
        ("extends: nothing.yaml", "does not exist"),
        ("extends: 3", "extends is 3"),
    ]:
        child.write_text(text)
        with pytest.raises(ConfigError, match=sentence):
            load_config(child)
    with pytest.raises(ConfigError, match=r"does not exist.*quickstart"):
        load_config(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="folder"):
        load_config(tmp_path)
    child.write_text("")
    assert load_config(child) == load_config({})


@pytest.mark.parametrize("name", ["on", "no", "1e5", "007"])
def test_a_text_field_takes_an_override_as_it_is_written(name: str) -> None:
    assert load_config({}, [f"run.name={name}"]).run.name == name
    assert load_config({}, ["run.name=null"]).run.name is None


# What YAML, OmegaConf or both read as something else than the text.
_PIECES = [
    "$",
    "{",
    "}",
    "\\",
    "?",
    ":",
    "'",
    '"',
    "\n",
    "#",
    "=",
    "<<",
    " ",
    "a",
    "é",
    "漢",
    "\r",
    "\x85",
    "\u2028",
    "\ufeff",
    "\x00",
    "\U0001f600",
]
_WORDS = [
    "no",
    "1e5",
    "1e-5",
    "012",
    "10:30",
    "2024-01-01",
    "~",
    "null",
    "${x}",
    r"\${x}",
    r"\\${x}\\",
    "${",
    "x${a.b}}",
]
_TEXT = (
    st.lists(st.sampled_from([*_PIECES, "${", r"\${"]), max_size=8).map("".join) | st.sampled_from(_WORDS) | st.text()
).filter(lambda text: text != "???")
_VALUE = st.recursive(
    _TEXT | st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=6,
)


@hypothesis.settings(max_examples=150, deadline=None)
@hypothesis.given(value=_VALUE)
def test_any_written_value_reads_back_as_it_was(value: Any) -> None:
    read = OmegaConf.create(read_yaml(write_yaml({"value": value})))
    assert OmegaConf.to_container(read, resolve=True) == {"value": value}


@hypothesis.settings(max_examples=12, deadline=None)
@hypothesis.given(
    prompt=_TEXT, stop=st.lists(_TEXT.filter(bool), max_size=6), kwargs=st.dictionaries(_TEXT, _VALUE, max_size=3)
)
def test_any_text_in_a_run_reads_back_as_it_was(prompt: str, stop: list[str], kwargs: dict[str, Any]) -> None:
    plain = load_config({})
    config = dataclasses.replace(
        plain,
        conversation=dataclasses.replace(plain.conversation, system_prompt=prompt),
        sampling=dataclasses.replace(plain.sampling, stop=stop),
        environment=dataclasses.replace(plain.environment, kwargs=kwargs),
    )
    with TemporaryDirectory() as name:
        folder = RunFolder(Path(name))
        folder.write_config(config)
        assert folder.read_config() == config


def test_every_line_break_in_a_written_text_stays_the_one_it_is() -> None:
    for letter in ("\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029"):
        for text in (letter, f"a{letter}b", f" {letter}{letter}\n{letter}", f"a {letter} b: #"):
            assert read_yaml(write_yaml({"value": text, text: [text]})) == {"value": text, text: [text]}


def test_a_run_whose_texts_hold_interpolation_marks_is_read_again(tmp_path: Path) -> None:
    given = {
        "run": {"folder": str(tmp_path), "seed": 3},
        "sampling": {"stop": [r"\${x}"]},
        "conversation": {"system_prompt": r"seed ${run.seed}, code \${}"},
        "environment": {"kwargs": {"code": [r"echo \${HOME}", {"inner": r"\\\${"}]}},
    }
    config = load_config(given)
    assert config.sampling.stop == ["${x}"]
    assert config.conversation.system_prompt == "seed 3, code ${}"
    assert config.environment.kwargs == {"code": ["echo ${HOME}", {"inner": "\\${"}]}
    assert RunFolder.create(config, "job").read_config() == config


def test_the_mark_of_a_value_to_be_given_is_refused_wherever_it_stands() -> None:
    for override, key in [
        ("sampling.stop=[a, '???']", r"sampling.stop\[1\]"),
        ("environment.kwargs={a: [{b: '???'}]}", r"environment.kwargs.a\[0\].b"),
    ]:
        with pytest.raises(ConfigError, match=rf"^{key} is \?\?\?, which marks a value still to be given"):
            load_config({}, [override])
    plain = load_config({})
    with pytest.raises(ConfigError, match=r"^sampling.stop\[0\] is \?\?\?"):
        config_to_yaml(dataclasses.replace(plain, sampling=dataclasses.replace(plain.sampling, stop=["???"])))


def test_an_interpolation_that_finds_nothing_says_how_to_write_the_text() -> None:
    for value in ("${x}", "${", "a ${oc.env:NOT_SET_ANYWHERE}", "${}"):
        with pytest.raises(ConfigError, match=r"run.name: .*; for the text \$\{ write \\\$\{$"):
            load_config({}, [f"run.name='{value}'"])


def _mistake(source: Any, overrides: list[str] | None = None) -> str:
    """The one sentence that a mistake is answered with."""
    with pytest.raises(ConfigError) as raised:
        load_config(source, overrides or [])
    assert len(str(raised.value).splitlines()) == 1
    return str(raised.value)


def test_files_that_extend_one_another_in_a_circle_are_named(tmp_path: Path) -> None:
    for name, base in {"a": "a.yaml", "b": "c.yaml", "c": "./b.yaml", "d": "b.yaml"}.items():
        (tmp_path / f"{name}.yaml").write_text(f"extends: {base}\n")
    assert "extends itself (a.yaml -> a.yaml)" in _mistake(tmp_path / "a.yaml")
    assert "extends itself (b.yaml -> c.yaml -> b.yaml); take extends out of one" in _mistake(tmp_path / "b.yaml")
    assert "extends itself (b.yaml -> c.yaml -> b.yaml)" in _mistake(tmp_path / "d.yaml")
    # Twice the same base, but in no circle; and a file named as the built-in one it extends.
    (tmp_path / "a.yaml").write_text("run: {seed: 5}\n")
    (tmp_path / "b.yaml").write_text("extends: a.yaml\n")
    (tmp_path / "c.yaml").write_text("extends: b.yaml\n")
    assert load_config(tmp_path / "c.yaml").run.seed == 5
    (tmp_path / "quickstart.yaml").write_text("extends: quickstart\n")
    assert load_config(tmp_path / "quickstart.yaml") == load_config("quickstart")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("? [a]\n: 1", "a key is a list or a mapping.*line 1, column 3"),
        ("run: {? {x}\n : 1}", "a key is a list or a mapping"),
        ("&a {run: *a}", "unknown key 'run.run'"),
        ("environment: {kwargs: &a {b: [*a]}}", "holds itself"),
        ("sampling: {stop: &a [*a]}", "holds itself|list"),
        ("environment: {kwargs: {a: " + "[" * 400 + "]" * 400 + "}}", "nested too deeply"),
        ("run: {<<: 3}", "what << merges is no mapping.*line 1, column 11"),
        ("run: {seed: 0x_}", "'0x_' cannot be read as int.*line 1, column 13"),
        ("run: {seed: !!int a}", "cannot be read as int"),
        ("run: {seed: " + "9" * 5000 + "}", "cannot be read as int"),
        ("evaluation: {before: !!bool maybe}", "cannot be read as bool"),
        ("run: {seed: 1, <<: {num_steps: 3}, seed: 2}", "the key 'seed' stands twice"),
    ],
)
def test_yaml_that_cannot_be_a_configuration_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "odd.yaml"
    path.write_text(text)
    assert re.search(sentence, _mistake(path))


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("run.name={{x}}", "override 'run.name={{x}}': the value is not YAML .a key is a list or a mapping"),
        ("environment.kwargs={[a]: 1}", "a key is a list or a mapping"),
        ("environment.kwargs=&a {b: *a}", "holds itself"),
        (f"environment.kwargs.{'a.' * 1500}b=1", "nested too deeply"),
        ("run.num_steps=0b_", "cannot be read as int"),
        ("learner.learning_rate=" + "9" * 400, "allowed: up to 1.8e"),
    ],
)
def test_an_override_that_is_no_value_is_one_sentence(override: str, sentence: str) -> None:
    assert re.search(sentence, _mistake({}, [override]))


def test_a_path_that_cannot_be_opened_is_one_short_sentence(tmp_path: Path) -> None:
    for source in ("x" * 5000, f"{'x' * 5000}/y", tmp_path / ("x" * 5000), "~nobody-of-that-name/a.yaml", "a\0b"):
        sentence = _mistake(source)
        assert (
            "cannot be opened (File name too long)" in sentence or "cannot be found" in sentence or "\\x00" in sentence
        )
        assert len(sentence) < 400
    child = tmp_path / "child.yaml"
    child.write_text(f"extends: {'x' * 5000}")
    assert "File name too long" in _mistake(child)


def test_merge_keys_fill_in_what_is_not_given(tmp_path: Path) -> None:
    path = tmp_path / "merged.yaml"
    path.write_text(
        "run: {<<: {num_steps: 3, seed: 1, name: on}, seed: 2}\n"
        "environment: {kwargs: {first: &a {size: 1}, second: &b {<<: *a, size: 2, y: 3},\n"
        "  third: {<<: [*b, *a], z: 4}, self: &c {<<: *c, z: 5}}}\n"
    )
    config = load_config(path, ["evaluation={<<: {num_tasks: 3}}"])
    assert (config.run.num_steps, config.run.seed, config.run.name) == (3, 2, "on")
    assert config.evaluation.num_tasks == 3
    assert config.environment.kwargs == {
        "first": {"size": 1},
        "second": {"size": 2, "y": 3},
        "third": {"size": 2, "y": 3, "z": 4},
        "self": {"z": 5},
    }


# Words that YAML reads as a truth value, a number, a date, or its own marks.
_PLAIN_WORDS = ["no", "on", "y", "012", "0x1f", "1e3", "1e5", "1_000", "10:30", ".5", "2024-01-01", "=", "<<", ".inf"]


@pytest.mark.parametrize("word", _PLAIN_WORDS)
def test_a_text_field_takes_a_plain_word_as_it_is_written(tmp_path: Path, word: str) -> None:
    path = tmp_path / "words.yaml"
    path.write_text(
        f"run: {{name: {word}}}\nsampling: {{stop: [{word}, '{word}', null_]}}\nmodel:\n  path: {word} # it\n"
    )
    from_file = load_config(path)
    from_overrides = load_config(
        {}, [f"run={{name: {word}}}", f"sampling.stop=[{word}, '{word}', null_]", f"model.path={word}"]
    )
    for config in (from_file, from_overrides):
        assert (config.run.name, config.model.path) == (word, word)
        assert config.sampling.stop == [word, word, "null_"]


def test_only_text_fields_take_words_as_written_also_through_an_anchor() -> None:
    config = load_config({}, ["run={seed: &n 012, name: *n}", "environment.kwargs={a: no, b: 1e3, c: 2024-01-01}"])
    # 012 is octal in YAML: 10.
    assert (config.run.seed, config.run.name) == (10, "012")
    assert config.environment.kwargs == {"a": False, "b": 1000.0, "c": "2024-01-01"}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"evaluation": {"before": 7}}, "evaluation.before is 7; allowed: true or false"),
        ({"evaluation": {"before": 1}}, "evaluation.before is 1; allowed"),
        ({"evaluation": {"before": "y"}}, "evaluation.before is 'y'; allowed"),
        ({"evaluation": {"before": None}}, "evaluation.before is None; allowed"),
        ({"run": {"name": True}}, "run.name is True, which is no text; put it in quotes"),
        ({"model": {"path": 1e5}}, "model.path is 100000.0, which is no text"),
        ({"sampling": {"stop": ["a", False]}}, r"sampling.stop\[1\] is False, which is no text"),
    ],
)
def test_a_value_of_another_kind_is_refused_instead_of_converted(given: dict[str, Any], sentence: str) -> None:
    assert re.match(sentence, _mistake(given))


def test_an_interpolated_truth_value_is_taken() -> None:
    assert (
        load_config({}, ["evaluation.after=false", "evaluation.before=${evaluation.after}"]).evaluation.before is False
    )


def test_another_type_does_not_get_the_fields_of_the_first() -> None:
    assert load_config("alfworld_gate", ["gate.type=none"]).gate == load_config({}).gate
    # threshold is of the first kind alone; turn is of both.
    gate = load_config("alfworld_gate", ["gate.type=two_axis", "gate.distance_low=0.2"]).gate
    assert (gate.type, gate.turn, gate.threshold, gate.distance_low) == ("two_axis", 8, 0.12, 0.2)
    assert load_config("math_vigor", ["allocator={type: vip, most_rollouts: 16}"]).allocator.most_rollouts == 16
    replay = {"selector": {"replay": {"type": "advantage_prioritized", "ratio": 1.0}}, "objective": {"dual_clip": 10}}
    assert load_config(replay, ["selector.replay.type=none"]).selector == load_config({}).selector
    assert (
        load_config({"engine": {"dtype": "float32"}}, ["engine={type: scripted, script: a:b}"]).engine.dtype == "auto"
    )
    assert load_config({"gate": {"turn": 3}}, ["gate.type=two_axis"]).gate.turn == 3


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["gate.type=none", "gate.turn=3"], "gate.turn is given but gate.type is 'none'"),
        (["gate.turn=3", "gate.type=none"], "gate.turn is given but gate.type is 'none'"),
        (["gate={type: two_axis, threshold: 0.1}"], "gate.threshold is given but gate.type is 'two_axis'"),
        (["gate.type=prefix_edit_distance", "gate.distance_low=0.1"], "gate.distance_low is given"),
        (["gate.type=two_axes"], "gate.type is 'two_axes'.*did you mean 'two_axis'"),
        (["gate.type=null"], "gate.type is None; allowed: none, .*did you mean 'none'"),
        (["gate.type=[a]"], r"gate.type is \['a'\]; allowed"),
    ],
)
def test_a_field_given_beside_the_type_that_does_not_use_it_is_refused(overrides: list[str], sentence: str) -> None:
    assert re.match(sentence, _mistake("alfworld_gate", overrides))


def test_a_file_that_extends_another_changes_type_and_environment_as_overrides_do(tmp_path: Path) -> None:
    child = tmp_path / "child.yaml"
    child.write_text("extends: quickstart\nenvironment: {id: winnowrl/GuessNumber-v0}\n")
    assert load_config(child).environment.kwargs == {}
    child.write_text("extends: quickstart\nenvironment: {id: winnowrl/Arithmetic-v0, kwargs: {num_shots: 2}}\n")
    assert load_config(child).environment.kwargs == {"max_operand": 39, "num_shots": 2}
    child.write_text("extends: alfworld_gate\ngate: {type: none}\n")
    assert load_config(child).gate == load_config({}).gate
    child.write_text("extends: alfworld_gate\ngate: {type: none, turn: 3}\n")
    assert "gate.turn is given but gate.type is 'none'" in _mistake(child)
    # Without an id, the arguments are those of the default environment.
    base = {"environment": {"kwargs": {"num_shots": 2}}}
    assert load_config(base, ["environment.id=winnowrl/Arithmetic-v0"]).environment.kwargs == {"num_shots": 2}
    assert load_config(base, ["environment.id=winnowrl/GuessNumber-v0"]).environment.kwargs == {}

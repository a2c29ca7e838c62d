"""Tests of the fit that predicts processes from fewer ones."""
import calibrate
import pytest


def test_work_is_scaled_and_nothing_else():
    costs = {"step_ns": 100, "code_comparison_ps": 7, "component_ps": None, "message_ns": 50, "disk_iops": 9.0}
    assert calibrate.scaled(costs, 1.5) == {
        "step_ns": 150, "code_comparison_ps": 10, "component_ps": None, "message_ns": 50, "disk_iops": 9.0}


def test_a_message_takes_what_explains_the_rest():
    # 3 us a message: ten messages and four.
    assert calibrate.message_extra_ns([(130.0, 100.0, 10), (62.0, 50.0, 4)]) == pytest.approx(3000)
    assert calibrate.message_extra_ns([]) == 0


class Simulated:
    """Stands for a machine on which searches take twice their cost, and messages 4 us more than theirs."""

    asked = 10.0

    def simulated(self, count, mode, costs, client_us, replicas=1):
        assert mode == "baton" and replicas == 1
        messages = 5.0 * (count - 1)
        work = 80.0 * costs["step_ns"] / 1000
        return {"cpu_us": work + messages * costs["message_ns"] / 1000 + self.asked + client_us,
                "messages_per_query": messages}


def test_costs_are_fitted_to_fewer_processes():
    def real(count):
        return {"cpu_us": 160.0 + 5.0 * (count - 1) * 5.0 + 10.0, "client_us": 30.0}
    costs = {"step_ns": 1000, "message_ns": 1000}
    fit = calibrate.fitted(Simulated(), "baton", costs, [(n, real(n)) for n in (1, 2, 4)])
    assert fit == {"step_ns": 2000, "message_ns": 5000}

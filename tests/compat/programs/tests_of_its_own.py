"""A program that tests itself with `oneflow.unittest`."""

import unittest
import unittest.mock

import numpy as np
import oneflow as flow
import oneflow.typing as oft


@flow.unittest.skip_unless_1n1d()
class TestRelu(flow.unittest.TestCase):
    def test_relu(test_case):
        @flow.global_function()
        def job(x: oft.Numpy.Placeholder((4,))) -> oft.Numpy:
            return flow.nn.relu(x)

        test_case.assertEqual(job(np.array([-1, 0, 1, 2], np.float)).tolist(), [0, 0, 1, 2])

    def test_the_name_may_be_used_again(test_case):
        test_case.test_relu()


    def test_jobs_are_eager_where_the_environment_says_so(test_case):
        with unittest.mock.patch.dict("os.environ", ONEFLOW_TEST_ENABLE_EAGER="1"):
            test_case.setUp()
            test_case.assertTrue(flow.eager_execution_enabled() and flow.unittest.env.eager_execution_enabled())
        test_case.setUp()
        test_case.assertFalse(flow.eager_execution_enabled())


@flow.unittest.skip_unless_1n2d()
class TestOnTwo(flow.unittest.TestCase):
    def test_never(test_case):
        raise AssertionError("there is one device")


if __name__ == "__main__":
    unittest.main()

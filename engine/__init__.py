"""The RL engine: rollouts, rewards, GRPO-RoC, learner, stages. Never imports Django."""

"""Celery's door to runs: starts engines and looks after them. Every task is short and may be delivered twice."""

from celery import Task, shared_task
from django.conf import settings

from webapp.runs.launchers import LaunchFailed, launcher


@shared_task(bind=True, max_retries=10, retry_backoff=True)
def start_run(self: "Task[[str], None]", run_id: str) -> None:
    """Start a queued run's engine; the launcher starts a launch once, however often it is asked."""
    from webapp.runs import folders, services

    launch = services.next_launch(run_id)
    if launch is None:
        return
    try:
        folders.prepare(run_id)
        launcher().start(launch)
    except LaunchFailed as error:
        if self.request.retries >= settings.LAUNCH_RETRIES:
            services.could_not_start(run_id, f"the engine could not be started: {error}")
            return
        raise self.retry(exc=error, countdown=min(2**self.request.retries, 15)) from error
    except OSError as error:
        services.could_not_start(run_id, f"the run folder could not be made: {error}")


@shared_task
def kill_engine(run_id: str, launch: int) -> None:
    """Kill an engine that does not stop by itself."""
    launcher().kill(run_id, launch)


@shared_task(ignore_result=True)
def look_after_runs() -> None:
    """Every few seconds: start what was forgotten, end what has no engine any more."""
    from webapp.runs import care

    care.look_after_runs()
